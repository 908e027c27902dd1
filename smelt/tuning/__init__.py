"""A model in; for each of its kernels the schedule that is fastest here, in a file that compiles read,
out."""

from __future__ import annotations

from smelt.tuning.budget import TuneBudget
from smelt.tuning.jobs import Subject, TuneJob, find_jobs, listed, subject
from smelt.tuning.tuner import Tuned, tune

__all__ = ["Subject", "TuneBudget", "TuneJob", "Tuned", "find_jobs", "listed", "subject", "tune"]
