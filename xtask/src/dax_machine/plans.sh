# In the emulated machine: one rank on each socket, in every mode, with the channel beside either of them and
# over both. `built` and `modes` are set before.
export PATH="$built:$PATH"
share=/run/share
mkdir "$TMPDIR/plans" && cp examples/gray-scott/deck-small.toml "$TMPDIR/plans" && cd "$TMPDIR/plans" || exit 1
cat >workflow.toml <<'TOML'
forebay = 1

[workflow]
name = "two-sockets"

[channel.gs]
quota = "16MiB"

[[component]]
name = "gray-scott"
command = ["gray-scott", "--deck", "deck-small.toml", "--channel", "gs"]
ranks = 1
writes = ["gs"]

[[component]]
name = "analysis"
command = ["analysis", "--channel", "gs"]
ranks = 1
reads = ["gs"]
TOML
for mode in $modes; do
    for side in writer reader interleaved; do
        forebay run workflow.toml --quiet --mode "$mode" --locality "$side" --out "run-$mode-$side" || exit 1
        cp "run-$mode-$side/run.json" "$share/$mode-$side.json"
    done
done
