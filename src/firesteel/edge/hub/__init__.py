"""The Hugging Face Hub: listing repositories, downloading files, and the shared cache on disk."""
