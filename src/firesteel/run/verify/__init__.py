"""Warm-up and verification: does the engine that came up answer correctly and as fast as planned?

`warm_up` sends the first prompts; `verify` asks the `questions` and `api_questions`, step by step; `checks`,
`api_checks` and `engine_checks` decide (all pure); `prove` does all of it for a launch and writes its report.
Nothing here starts or stops an engine.
"""
