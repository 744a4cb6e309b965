"""The search for schedules, by MetaSchedule."""
