"""What the commands do, as functions over values: the command line and the page only show what they return.

    import asyncio, firesteel

    best = firesteel.plan("gpt-oss-120b", host_name="gb10")[0]
    print(best.plan.memory.verdict, best.plan.speed)

    async def main() -> None:
        async for event in firesteel.up(firesteel.plan("smollm2")[0]):
            print(event)

One module for each area: `plans`, `recipes`, `check`, `render`, `run`, `services`, `serve`, `clients`,
`bench`, `history`, `tune`, `weights`, `hosts`, `cluster`, `images`, `engines`; and `documents`, what `--json`
prints. Functions that wait for something are async or return a stream of events, whose last one is the
result. Failures are FiresteelErrors: a sentence, and `next`, what to type. Nothing here prints, and what is
slow to load (the HTTP client, the benchmark, the gateway) loads when a function first needs it; that is also
why some areas are apart, such as `bench` and `history`. `docs/library.md` has an example of each.
"""
