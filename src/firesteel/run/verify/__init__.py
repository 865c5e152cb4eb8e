"""Warm-up and verification: does the engine that came up answer correctly and as fast as planned?

`session` is the server under test, and warms it up; `verify` asks the `questions`, step by step; `checks`,
`api_checks` and `engine_checks` decide, and `garbage` tells text from noise (all pure); `after_start` does
all of it for a launch and writes its report. Nothing here starts or stops an engine.
"""
