"""`firesteel top`: the gateway's state in a terminal, over its own API.

`frame.py` is pure: a snapshot and what the user selected -> the lines of the screen. `client.py` asks the
gateway, `app.py` owns the terminal and the keys. Never decides anything about models: a key sends a request.
"""
