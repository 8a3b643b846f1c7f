"""envtest: a test against a real API server."""

load("//tools/rust:defs.bzl", "rust_test")

def envtest(name, size = "medium", tags = [], cpus = "1", data = [], dev_deps = [], env = {}, **kwargs):
    """A suite of //test/envtest as a test: the control plane's programs, a network of its own. A macro.

    Args:
        name: name of the test.
        size: as for every test.
        tags: as for every test.
        cpus: how many CPUs of the host the test keeps busy, as text, because it may be a fraction. The programs start with both
            CPUs, but then mostly wait for each other and for the cases.
        data: as for every test.
        dev_deps: as for `rust_test`, beside //test/envtest.
        env: as for every test.
        **kwargs: other attributes of a rust_test.
    """
    rust_test(
        name = name,
        size = size,
        data = data + [
            Label("//third_party/kubernetes:etcd"),
            Label("//third_party/kubernetes:kube"),
        ],
        dev_deps = dev_deps + [Label("//test/envtest")],
        env = env | {
            "ENVTEST_ETCD": "$(rootpath //third_party/kubernetes:etcd)",
            "ENVTEST_KUBE": "$(rootpath //third_party/kubernetes:kube)",
        },
        # The ports of the programs are fixed, so each suite gets its own loopback device.
        tags = tags + [
            "block-network",
            "resources:cpu:" + cpus,
        ],
        use_libtest_harness = False,
        **kwargs
    )
