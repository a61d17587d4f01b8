"""Programs in leases: how one gets in as the lease's holder, whatever it is: a shell, an app, a batch job."""
