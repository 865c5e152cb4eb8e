"""A simulated Spark: the interfaces of `edge` over a GB10 that does not exist.

    create_spark(folder, SimSpark(...))   writes one
    environment(folder, os.environ)       the environment of a process that runs on it
    enter("collapse", os.environ)         both, for `firesteel --sim collapse ...`

Processes, ports, HTTP, locks and files are real. Simulated are `/proc/meminfo` and its neighbours, the kernel
log, `nvidia-smi` and `docker`: two small programs that come first on PATH. A simulated container is a process
that prints an engine's own start-up lines at the planned times, takes the planned memory in the simulated
`/proc/meminfo`, and answers real HTTP at the planned speed. Faults come on demand (`SimFault`). Nothing that
it shows is a measurement, and everything that it serves says that it is simulated.

`setup` makes a Spark, `spark` says what it is, `host_files` has what `doctor` reads on it. `docker`,
`nvidia_smi`, `engine_config` and `process` are programs that it runs; the other modules are parts of those.
Import names from their modules: a supervisor reads the simulated `/proc` once a second and must stay small.
"""
