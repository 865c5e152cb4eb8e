"""Operations on services: fetch, start, supervise, verify and stop models.

They carry out proposals and report `events`; they never plan. What runs is read from files and locks under
FIRESTEEL_HOME, never from memory, so every command finds the truth after any crash (see DESIGN.md). `up` and
`down` are the operations, `service` is what runs, `spec` how it is started; `pull`, `preflight`, `start` and
`verify` are the stages of `up`.

Import names from their modules: a supervisor lives as long as its model, and must not load the planner.
"""
