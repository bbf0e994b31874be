"""`roll-launch doctor`: finds out what is wrong between two parts of a run that should agree."""
