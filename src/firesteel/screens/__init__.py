"""Screens: `firesteel top`, over the gateway's own API. Nothing below imports this package."""
