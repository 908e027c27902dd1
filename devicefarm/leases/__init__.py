"""Who may use which device, and what came of it: a database of leases, queue, jobs and results."""
