"""Warm-up and verification: does the engine that came up answer correctly and as fast as planned?"""
