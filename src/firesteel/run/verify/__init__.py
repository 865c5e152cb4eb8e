"""Warm-up and verification: does the engine that came up answer correctly and as fast as planned?

`warm_up` sends the first prompts, `verify` asks questions with known answers, `checks` and `engine_checks`
decide (both pure), `prove` does all of it for a launch and writes its report. Nothing here starts or stops
an engine.
"""
