"""Fitting in a notebook or a program: `fit`, `compare`, and the model that they return."""
