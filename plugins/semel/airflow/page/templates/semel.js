// The pages follow Airflow's switch of colours. In a tab of Airflow, a link to Airflow moves the
// outer page, and the outer page's address names the page within, so that it can be sent.
const paint = () => { document.documentElement.dataset.theme = localStorage.theme ?? ""; };
paint();
addEventListener("storage", paint);

const own = new URL(".", document.currentScript.src).pathname;
const isOwn = (url) => url.origin === location.origin && url.pathname.startsWith(own);

const writeAddress = () => {
  const atHome = frameElement.src === location.href;
  const hash = atHome ? "" : "#" + location.href.slice(location.origin.length);
  const { pathname, search } = parent.location;
  parent.history.replaceState(parent.history.state, "", pathname + search + hash);
};

const moveAirflow = (event) => {
  const link = event.target.closest("a[href]");
  const isPlain = !event.button && !(event.ctrlKey || event.metaKey || event.shiftKey);
  if (!link || !isPlain || link.origin !== location.origin || isOwn(link)) return;
  event.preventDefault();
  parent.history.pushState(null, "", link.href);
  parent.dispatchEvent(new PopStateEvent("popstate"));
};

if (parent !== self) {
  const named = parent.location.hash.slice(1);
  const wanted = new URL(named.startsWith(own) ? named : location.href, location);
  const isFirst = !("semel" in frameElement.dataset); // Later pages of the frame name themselves.
  frameElement.dataset.semel = "";
  if (isFirst && isOwn(wanted) && wanted.href !== location.href) location.replace(wanted);
  else writeAddress();
  addEventListener("hashchange", writeAddress);
  addEventListener("click", moveAirflow);
}

// A table wider than its page wraps its cells, or else becomes a card for each row, in which each
// cell names its column.
const fit = () => {
  for (const box of document.querySelectorAll(".scroll:has(table)")) {
    box.classList.remove("tight", "cards");
    for (const way of ["tight", "cards"]) {
      if (box.scrollWidth > box.clientWidth) box.classList.add(way);
    }
  }
};
const nameCells = (table) => {
  const heads = [...table.querySelectorAll("thead th")].map((head) => head.innerText);
  for (const row of table.querySelectorAll("tbody tr")) {
    let column = 0;
    for (const cell of row.cells) {
      if (cell.colSpan === 1) cell.dataset.column = heads[column] ?? "";
      if (!cell.innerText.trim() && !cell.querySelector("svg")) cell.dataset.blank = "";
      column += cell.colSpan;
    }
  }
};
addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".scroll table").forEach(nameCells);
  fit();
});
addEventListener("load", fit);
addEventListener("resize", fit);
