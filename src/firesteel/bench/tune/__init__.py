"""Search for better settings by measuring candidates."""
