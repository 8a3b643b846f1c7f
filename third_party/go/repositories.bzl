"""Repositories that the `go` client fills: the pinned toolchain and vendored modules.

go.sum and the checksum database vouch for what is downloaded; the client finds its proxy itself.
"""

_ENV = ["GOPROXY", "GOSUMDB", "GONOSUMDB", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE"]

_BUILD = """\
package(default_visibility = ["//visibility:public"])

exports_files(glob(["*.proto", "*.tar", "*.yaml"]))
"""

def _go(ctx, directory, args):
    go = ctx.which("go")
    if not go:
        fail("no `go` in PATH: it is needed once, to fetch the pinned toolchain {} (any Go from 1.21 on)".format(ctx.attr.toolchain))
    env = {name: value for name in _ENV for value in [ctx.getenv(name)] if value}
    env.update({
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": ctx.attr.toolchain,
        "HOME": str(ctx.path(".home")),
        # bazelw sets a persistent directory.
        "GOMODCACHE": ctx.getenv("GOMODCACHE") or str(ctx.path(".modcache")),
    })
    result = ctx.execute([go] + args, working_directory = directory, environment = env, timeout = 1800)
    if result.return_code:
        fail("`go {}` for {} failed: {}".format(" ".join(args), ctx.name, result.stderr))
    return result.stdout.strip()

# Packs one archive instead of thousands of inputs. It is quick to stage, hides BUILD files from Bazel, and contains
# regular files for go:embed, which rejects the symbolic links of a sandbox.
def _tar(ctx, name, directory, options = []):
    result = ctx.execute(
        ["tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+w"] + options +
        ["-C", str(directory), "-cf", name, "."],
        timeout = 600,
    )
    if result.return_code:
        fail("cannot archive {}: {}".format(name, result.stderr))
    ctx.file("BUILD.bazel", _BUILD)

def _clean(ctx, directories):
    # Module directories are read-only, so `ctx.delete` could not remove their content.
    for directory in directories:
        ctx.execute(["chmod", "-R", "u+w", directory])
        ctx.delete(directory)

def _go_sdk_impl(ctx):
    ctx.report_progress("fetching " + ctx.attr.toolchain)
    root = ctx.path(_go(ctx, ".", ["env", "GOROOT"]))
    if "golang.org/toolchain@" not in str(root):
        fail("{} is this machine's own toolchain {}; the pinned one is wanted as a module: use another `go` to fetch it".format(root, ctx.attr.toolchain))
    _tar(ctx, "sdk.tar", root, ["--exclude=./test", "--exclude=./doc", "--exclude=./api", "--exclude=testdata", "--exclude=*_test.go"])
    _clean(ctx, [".home", ".modcache"])

go_sdk = repository_rule(
    implementation = _go_sdk_impl,
    doc = "The Go toolchain (itself a module with a checksum) as one archive, `sdk.tar`.",
    attrs = {"toolchain": attr.string(mandatory = True, doc = "Its name, as in go.mod: go1.26.8.")},
)

def _go_vendor_impl(ctx):
    module = ctx.path(ctx.attr.go_mod).dirname
    for source in [ctx.attr.go_mod, ctx.attr.go_sum] + ctx.attr.srcs:
        path = str(ctx.path(source)).removeprefix(str(module) + "/")
        ctx.file("src/" + path, ctx.read(source))
    ctx.report_progress("vendoring the modules of {} (about a minute, once)".format(ctx.attr.go_mod))
    _go(ctx, "src", ["mod", "vendor"])
    for pin in [ctx.attr.go_mod, ctx.attr.go_sum]:
        if ctx.read("src/" + pin.name) != ctx.read(pin):
            fail("{pin} does not name all that it needs: `go mod tidy` in its directory, and look at what changes".format(pin = pin))
    for name, file in ctx.attr.module_files.items():
        module_path, _, path = file.partition(":")
        where = _go(ctx, "src", ["list", "-m", "-f", "{{.Dir}}", module_path])
        if not where:
            where = json.decode(_go(ctx, "src", ["mod", "download", "-json", module_path]))["Dir"]

        # Copy bytes, because `ctx.file` would encode characters twice.
        ctx.file(name, ctx.read(where + "/" + path), legacy_utf8 = False)
    _tar(ctx, "src.tar", "src")
    _clean(ctx, ["src", ".home", ".modcache"])

go_vendor = repository_rule(
    implementation = _go_vendor_impl,
    doc = "A Go module with all it depends on vendored, as one archive, `src.tar`.",
    attrs = {
        "go_mod": attr.label(mandatory = True, allow_single_file = True, doc = "The module's go.mod."),
        "go_sum": attr.label(mandatory = True, allow_single_file = True, doc = "Its go.sum."),
        "module_files": attr.string_dict(doc = "Files of modules to offer: name here -> module:path."),
        "srcs": attr.label_list(allow_files = True, doc = "The module's own Go files."),
        "toolchain": attr.string(mandatory = True, doc = "The Go toolchain's name."),
    },
)
