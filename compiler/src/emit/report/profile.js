// The profile: a picture of the layers whose widths are times, and a table of the kernels.
const micros = ns => (ns / 1e3).toFixed(ns < 1e5 ? 1 : 0);
const percent = share => share === null ? "" : `${(100 * share).toFixed(0)} %`;
const shareOf = (bound, ns) => bound === null ? null : bound / Math.max(ns, 1);
// From red for a kernel far from its bound to green for one at its bound.
const heat = share => share === null ? "var(--unknown)" : `hsl(${120 * Math.min(share, 1)} 60% var(--heat))`;

// The path of a layer: the parts of the first quoted name, such as `/encoder/layer.0/query/Add`.
const pathOf = name => (name.split("`")[1] ?? name).split("/").filter(part => part);

// The kernels grouped by their paths. Kernels run in order, so a group has neighbours only.
const grow = (rows, depth) => {
  const nodes = [];
  for (const row of rows) {
    const label = row.path[depth] ?? row.path.at(-1) ?? row.name;
    const isLeaf = depth + 1 >= row.path.length;
    const last = nodes.at(-1);
    if (last && !last.isLeaf && !isLeaf && last.label === label) last.rows.push(row);
    else nodes.push({ label, isLeaf, rows: [row] });
  }
  return nodes.map(node => {
    let { label, rows } = node, at = depth;
    // A group with the one child that holds all of it is the same picture twice.
    while (!node.isLeaf && rows.every(row => at + 2 < row.path.length && row.path[at + 1] === rows[0].path[at + 1])) {
      label += `/${rows[0].path[++at]}`;
    }
    const ns = rows.reduce((sum, row) => sum + row.ns, 0);
    const bound = rows.some(row => row.bound_ns === null) ? null : rows.reduce((sum, row) => sum + row.bound_ns, 0);
    return { label, ns, bound, rows, children: node.isLeaf ? [] : grow(rows, at + 1) };
  });
};

const drawFlame = size => {
  const rows = size.kernels.map(row => ({ ...row, path: pathOf(row.name) }));
  const total = rows.reduce((sum, row) => sum + row.ns, 0) || 1;
  const boxes = [];
  let deepest = 0;
  const place = (nodes, begin, depth) => {
    deepest = Math.max(deepest, depth);
    for (const node of nodes) {
      const share = shareOf(node.bound, node.ns), width = node.ns / total;
      const box = make("button", { className: "box" }, node.label);
      Object.assign(box.style, { left: `${100 * begin}%`, width: `${100 * width}%`, top: `${1.6 * depth}rem`, background: heat(share) });
      const reached = share === null ? "" : `, ${percent(share)} of the bound`;
      box.title = `${node.rows.length === 1 ? node.rows[0].name : node.label}: ${micros(node.ns)} µs, ${percent(width)} of the time${reached}`;
      box.onpointerenter = () => at("flame-about").textContent = box.title;
      box.onfocus = box.onpointerenter;
      box.onclick = () => show(node.rows[0].kernel);
      boxes.push(box);
      place(node.children, begin, depth + 1);
      begin += width;
    }
  };
  place(grow(rows, 0), 0, 0);
  at("flame").style.height = `${1.6 * (deepest + 1)}rem`;
  at("flame").replaceChildren(...boxes);
};

// The time of the same kernel in the other profile: kernels of one name are matched in order.
const matcher = size => {
  const times = new Map();
  for (const row of size?.kernels ?? []) times.set(row.name, [...times.get(row.name) ?? [], row.ns]);
  return name => times.get(name)?.shift() ?? null;
};

const drawProfile = number => {
  const size = model.profile.sizes[number], baseline = model.profile.baseline;
  const other = baseline?.sizes.find(other => other.at === size.at);
  const before = matcher(other);
  const total = size.kernels.reduce((sum, row) => sum + row.ns, 0) || 1;
  const rows = size.kernels.map(row => ({ ...row, before: before(row.name) })).sort((a, b) => b.ns - a.ns);

  const gone = other ? other.kernels.length - rows.filter(row => row.before !== null).length : 0;
  const compared = !baseline ? "" : !other ? ` ${baseline.name} has no profile at these sizes.`
    : ` In ${baseline.name} the call takes ${micros(other.call_ns)} µs, ${(other.call_ns / size.call_ns).toFixed(2)} times this one; ${gone} of its kernels have no namesake here.`;
  at("profile-summary").textContent = `A call takes ${micros(size.call_ns)} µs on one thread; the kernels one by one ${micros(total)} µs.${compared}`;

  const head = ["kernel", "time in µs", "part", "of the bound", "bound by", "multiply-adds per ns", "bytes per ns", ...other ? ["before in µs", "before / now"] : []];
  const headRow = make("tr");
  headRow.append(...head.map(text => make("th", {}, text)));
  const number_ = text => make("td", { className: "n" }, text);
  at("profile-kernels").replaceChildren(headRow, ...rows.map(row => {
    const line = make("tr"), name = make("td");
    name.append(make("button", { onclick: () => show(row.kernel), title: row.name }, `${row.kernel}  ${row.name}`));
    line.append(name, number_(micros(row.ns)), number_(percent(row.ns / total)), number_(percent(shareOf(row.bound_ns, row.ns))),
      make("td", {}, row.bound_by ?? "depends on data"), number_((row.multiplications / row.ns).toFixed(1)), number_((row.bytes / row.ns).toFixed(1)));
    if (other) line.append(number_(row.before === null ? "new" : micros(row.before)), number_(row.before === null ? "" : (row.before / row.ns).toFixed(2)));
    return line;
  }));
  [...at("profile-sizes").children].forEach((button, i) => button.setAttribute("aria-pressed", i === number));
  drawFlame(size);
};

if (model.profile) {
  at("profile").hidden = false;
  const { multiplications, bandwidths } = model.profile.machine;
  const rates = bandwidths.map(([bytes, rate]) => `${rate.toFixed(0)} for ${grouped(bytes / 1024)} KiB`).join(", ");
  at("profile-machine").textContent = `Measured on this machine: ${multiplications.toFixed(0)} multiply-adds of f32 per ns; bytes per ns: ${rates}.`;
  at("profile-sizes").append(...model.profile.sizes.map((size, i) => make("button", { onclick: () => drawProfile(i) }, size.at || "all sizes are fixed")));
  drawProfile(model.profile.sizes.length - 1);
}
