"""Faces of the project, looked at in headless Chromium."""
