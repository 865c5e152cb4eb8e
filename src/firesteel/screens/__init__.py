"""Screens: the web page at `/` of the gateway and `firesteel top`, over the gateway's own API.

Nothing below imports this package: `cli` hands the page's files to the gateway.
"""
