"""Starts and stops models in child processes, so that the gateway's process carries no planner."""
