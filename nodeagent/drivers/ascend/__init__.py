"""Huawei Ascend devices over npu-smi."""
