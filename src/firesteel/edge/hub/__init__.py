"""The Hugging Face Hub: `client` lists and fetches, and explains failures; `cache` is the store of weights on
disk; `files` are those of a repository, moved in threads and compared with their digests.

Never decides which files a model needs: that is `run.weights`.
"""
