"""The Hugging Face Hub: `client` lists and fetches, `cache` is the store of weights on disk, `listing`
describes the files of a repository, `transfer` moves bytes in threads, `errors` explains failures.

Never decides which files a model needs: that is `run.fetch`.
"""
