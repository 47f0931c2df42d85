"""What people who run the system do: tasks, schedules, bulk operations, dead letters, tenants, audit, locks."""
