"""A browser out of pinned packages."""

# Files of Chromium's headless shell, besides its libraries. The other files are for 3D graphics, languages and windows.
_PARTS = [
    "chromium-headless-shell",
    "headless_command_resources.pak",
    "headless_lib_data.pak",
    "headless_lib_strings.pak",
    "icudtl.dat",
    "v8_context_snapshot.bin",
]

_FONTS = [
    "DejaVuSans-Bold.ttf",
    "DejaVuSans.ttf",
    "DejaVuSansMono-Bold.ttf",
    "DejaVuSansMono.ttf",
]

_FONTS_CONF = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""

_BUILD = """\
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
for deb in {packages}; do dpkg-deb -x "$deb" "$work"; done
for deb in {libc}; do dpkg-deb -x "$deb" "$work/libc"; done
mkdir -p {out}/lib {out}/fonts
for part in {parts}; do cp "$work/usr/lib/chromium/$part" {out}/; done
for font in {fonts}; do cp "$work/usr/share/fonts/truetype/dejavu/$font" {out}/fonts/; done
cp {conf} {out}/fonts.conf
# The loader's own closure over what the browser names, but for the C library: that is the one of the root, with the
# loader that every program is started by.
usr="$work/usr/lib/x86_64-linux-gnu"
libs="$usr:$usr/pulseaudio:$work/lib/x86_64-linux-gnu:$work/libc/lib/x86_64-linux-gnu"
"$work/libc/lib64/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$libs" --list {out}/chromium-headless-shell > "$work/list"
! grep 'not found' "$work/list" || {{ echo "{label}: a library is missing: name its package" >&2; exit 1; }}
awk '$2 == "=>" {{ print $3 }}' "$work/list" | while read -r lib; do
    case $lib in
        "$work"/libc/*) ;;
        "$work"/*) cp -L "$lib" {out}/lib/ ;;
        *) echo "$lib is not of a pinned package" >&2; exit 1 ;;
    esac
done
"""

def _headless_chromium_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    conf = ctx.actions.declare_file(ctx.label.name + ".fonts.conf")
    ctx.actions.write(conf, _FONTS_CONF)
    ctx.actions.run_shell(
        inputs = ctx.files.packages + ctx.files.libc + [conf],
        outputs = [out],
        command = _BUILD.format(
            conf = conf.path,
            fonts = " ".join(_FONTS),
            label = ctx.label,
            libc = " ".join([deb.path for deb in ctx.files.libc]),
            out = out.path,
            packages = " ".join([deb.path for deb in ctx.files.packages]),
            parts = " ".join(_PARTS),
        ),
        mnemonic = "HeadlessChromium",
        progress_message = "Unpacking Chromium",
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

headless_chromium = rule(
    implementation = _headless_chromium_impl,
    doc = "Chromium's headless shell with all that it loads but the C library: a directory with the program, `lib`, `fonts` and `fonts.conf`.",
    attrs = {
        "libc": attr.label(mandatory = True, allow_files = [".deb"], doc = "The package of the C library that the others are linked against."),
        "packages": attr.label(mandatory = True, allow_files = [".deb"], doc = "Packages of the browser, its libraries and fonts."),
    },
)
