"""Kernels in, scheduled kernels out: primitives, schedules as data, strategies that choose them."""

from __future__ import annotations

from smelt.core.schedule.module import schedule_by, schedule_kernel, schedule_module

__all__ = ["schedule_by", "schedule_kernel", "schedule_module"]
