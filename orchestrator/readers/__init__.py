"""Prompts as their public producers write them, made into ours."""
