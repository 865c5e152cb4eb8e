"""Alerts: a webhook and a command hear when a model turns unhealthy, a load fails, the guard acts or a disk
fills, and when that is over.

`conditions.py` and `tracker.py` are pure: the gateway's state -> what is wrong -> what to tell, in no flood.
`watch.py` looks every five seconds; `send.py` delivers. Nothing here changes a model.
"""
