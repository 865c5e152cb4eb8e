"""Files of the user and of firesteel: FIRESTEEL_HOME, checkpoints, secrets, other programs' settings.

Never interprets what it reads beyond checking that it is sound.
"""
