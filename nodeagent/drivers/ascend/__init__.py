"""Huawei Ascend cards over npu-smi."""
