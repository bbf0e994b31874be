"""Reward models that run here: sequence classifiers of Hugging Face, in batches."""
