"""Grader `code`: what a program does under test."""

from roll_rewards.graders.code.grader import Code

__all__ = ["Code"]
