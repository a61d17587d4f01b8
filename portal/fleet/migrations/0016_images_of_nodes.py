import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0015_node_presence"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="image_limit_mib",
            field=models.PositiveBigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="node",
            name="images_mib",
            field=models.PositiveBigIntegerField(blank=True, null=True),
        ),
        migrations.CreateModel(
            name="NodeImage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("holder", models.CharField(blank=True, max_length=150)),
                ("name", models.CharField(max_length=300)),
                ("digest", models.CharField(blank=True, max_length=200)),
                ("size_mib", models.PositiveIntegerField()),
                (
                    "node",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="images",
                        to="fleet.node",
                    ),
                ),
            ],
            options={
                "ordering": ["node", "name"],
                "indexes": [models.Index(fields=["holder", "node"], name="image_by_holder")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("node", "holder", "name", "digest"), name="image_once_for_a_holder"
                    )
                ],
            },
        ),
    ]
