"""Statistics: run against run, run against plan, run against published figures.

It only judges stored runs; `servers` alone measures, two servers in turns.
"""
