"""What watches the gateway while it runs; none of it is on the path of a request or changes a model.

Every five seconds `sampler.py` compares the meter's counters with those of the last time, asks the engines
and the GPU, and writes one row a model to `curves.db` (`store.py`). `alerts.py` tells a webhook and a command
when a model turns unhealthy, a load fails, the guard acts or a disk fills, and when that is over.
"""
