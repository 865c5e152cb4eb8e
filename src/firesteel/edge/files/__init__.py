"""Files of the user and of firesteel: FIRESTEEL_HOME, checkpoints, text files, secrets."""
