"""HTTP to engines and downloads."""
