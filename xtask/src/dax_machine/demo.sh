# In the emulated machine: first what was promised of the demo's channel is looked for; then the demo, a simulation on
# two ranks coupled with its analysis by `forebay run`, goes on with that channel until the power goes. `built`,
# `acknowledged`, `kept`, `deck`, `steps` and `reference` are set before.
path=$NVDIMM0/gs
back=$("$built/examples/demo_until_cut" look "$path" "$reference" "$kept" "$acknowledged")
found=$?
echo "$back"
[ $found = 0 ] || exit
# Only what comes behind it is of this boot: `back FIRST..LAST` or `back none`.
case $back in
*none) from=0 ;;
*) from=$((${back##*.} + 1)) ;;
esac
export PATH="$built:$PATH"
cat >"$TMPDIR/demo.toml" <<TOML
forebay = 1

[workflow]
name = "demo"

[channel.gs]
path = "$path"
tier = "pmem"
horizon = "epoch"
quota = "256MiB"
retention = "last:$kept"
keep = true
mode = "a"

[[component]]
name = "gray-scott"
command = ["gray-scott", "--deck", "$deck", "--steps", "$steps", "--output-every", "1"]
ranks = 2
writes = ["gs"]

[[component]]
name = "analysis"
command = ["analysis", "--out", "$NVDIMM0/analysis", "--existing", "continue", "--slices-every", "0"]
ranks = 1
reads = ["gs"]
TOML
{
    forebay run "$TMPDIR/demo.toml" --quiet --out "$TMPDIR/demo" >"$TMPDIR/said" 2>&1
    echo "wrong forebay run ended with status $?: $(tail -n 3 "$TMPDIR/said" | tr '\n' ' ')"
} &
exec "$built/examples/demo_until_cut" follow "$path" "$from"
