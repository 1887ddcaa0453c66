"""Small models for the parameter-server tests."""

from trimtab.core.domain.model_spec import InitializerSpec, ModelSpec, OptimizerSpec, TableSpec

SGD = OptimizerSpec("sgd")
UNIFORM = InitializerSpec("uniform", -0.05, 0.05)


def spec_of(*tables, blocks="", fingerprint="f"):
    return ModelSpec("test", tuple(tables), 0, blocks, fingerprint)


def embedding(name, dim=4, optimizer=SGD, initializer=UNIFORM):
    return TableSpec(name, dim, "embedding", 0, initializer, optimizer)
