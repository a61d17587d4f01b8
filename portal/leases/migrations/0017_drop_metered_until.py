from django.db import migrations


class Migration(migrations.Migration):
    """Nothing reads or writes it: usage records say how far a lease is metered."""

    dependencies = [("leases", "0016_lease_by_node")]

    operations = [migrations.RemoveField(model_name="lease", name="metered_until")]
