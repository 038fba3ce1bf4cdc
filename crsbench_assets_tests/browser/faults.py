"""What makes a page hard to read, measured in the browser.

What lives here: elements beyond the window, clipped text, texts over each other, plots without a mark, and the findings
of axe-core. What stays out: which pages are asked (the tests). Each function returns one sentence per fault.
https://www.deque.com/axe/core-documentation/api-documentation/
"""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

_COMMON = """
const say = e => `${e.tagName.toLowerCase()}${e.id ? '#' + e.id : ''}` +
    `.${(e.getAttribute('class') || '').trim().split(/\\s+/).join('.')} "${(e.textContent || '').trim().slice(0, 60)}"`;
const seen = e => e.checkVisibility({opacityProperty: true, visibilityProperty: true});
const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
const hides = style => /hidden|clip|auto|scroll/.test(style.overflowX);
const isForReaders = e => {  // one pixel, clipped: text that only screen readers speak
    for (let x = e; x; x = x.parentElement) {
        const box = x.getBoundingClientRect();
        if (box.width <= 1 && box.height <= 1) return true;
    }
    return false;
};
"""

_OVERFLOW = """() => {
    const width = document.documentElement.clientWidth, found = [];
    if (document.documentElement.scrollWidth > width)
        found.push(`the page is ${document.documentElement.scrollWidth} px wide in a window of ${width} px`);
    const scrolls = e => {
        for (let x = e.parentElement; x && x !== document.body; x = x.parentElement)
            if (hides(getComputedStyle(x)) && x.getBoundingClientRect().right <= width + 1) return true;
        return false;
    };
    for (const e of document.body.querySelectorAll('*')) {
        const box = e.getBoundingClientRect();
        if (e.closest('#js-plotly-tester')) continue;
        if (box.width && seen(e) && (box.right > width + 1 || box.left < -1) && !isForReaders(e) && !scrolls(e))
            found.push(`${say(e)} reaches from ${box.left.toFixed()} to ${box.right.toFixed()} px of ${width}`);
    }
    return found;
}"""

_CLIPPED = """() => {
    const found = [];
    for (const e of document.body.querySelectorAll('*')) {
        if (e.closest('svg') || !own(e) || !seen(e) || isForReaders(e)) continue;
        const range = document.createRange();
        range.selectNodeContents(e);
        const text = range.getBoundingClientRect();
        for (let x = e; x && x !== document.body; x = x.parentElement) {
            const style = getComputedStyle(x), box = x.getBoundingClientRect();
            const cutsX = /hidden|clip/.test(style.overflowX), cutsY = /hidden|clip/.test(style.overflowY);
            if ((cutsX && (text.right > box.right + 1 || text.left < box.left - 1)) ||
                (cutsY && (text.bottom > box.bottom + 1 || text.top < box.top - 1))) {
                found.push(`${say(e)} is clipped by ${say(x).slice(0, 60)}`);
                break;
            }
            if (/auto|scroll/.test(style.overflowX + style.overflowY)) break;  // what is beyond it can be reached
        }
    }
    for (const svg of document.querySelectorAll('svg')) {
        if (svg.parentElement.closest('svg') || !seen(svg)) continue;
        const box = svg.getBoundingClientRect();
        for (const text of svg.querySelectorAll('text')) {
            const t = text.getBoundingClientRect();
            if (t.width && seen(text) && (t.left < box.left - 1.5 || t.right > box.right + 1.5 ||
                                          t.top < box.top - 1.5 || t.bottom > box.bottom + 1.5))
                found.push(`the text "${text.textContent}" leaves its plot in ${say(svg.parentElement).slice(0, 60)}`);
        }
    }
    return found;
}"""

_OVERLAP = """() => {
    const found = [];
    for (const plot of document.querySelectorAll('.js-plotly-plot')) {
        const texts = [...plot.querySelectorAll('svg text')].filter(t =>
            t.textContent.trim() && seen(t) && !/rotate\\((?!0[,)])/.test(t.getAttribute('transform') || ''));
        const boxes = texts.map(t => t.getBoundingClientRect());
        for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
            const [a, b] = [boxes[i], boxes[j]];
            const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (x > 2 && y > 4)
                found.push(`"${texts[i].textContent}" and "${texts[j].textContent}" overlap in ${plot.dataset.plot}`);
        }
    }
    return found;
}"""

_EMPTY = """() => [...document.querySelectorAll('.plot[data-plot]')].filter(plot => {
    const marks = plot.querySelectorAll(
        '.plot path, .plot rect, .plot image, .polarlayer .trace path, .scatterlayer path, .barlayer path');
    return seen(plot) && ![...marks].some(mark => {
        const box = mark.getBoundingClientRect();
        return box.width > 0 || box.height > 0;
    });
}).map(plot => `the plot "${plot.dataset.plot}" has no mark`)"""

_UNROLL = """async () => {
    document.querySelectorAll('details').forEach(one => { one.open = true; });
    const plots = [...document.querySelectorAll('.plot[data-plot]')].filter(plot => plot.checkVisibility());
    for (const plot of plots) {
        plot.scrollIntoView({block: 'center', behavior: 'instant'});
        for (let n = 0; n < 200 && !plot.querySelector('svg.main-svg'); n++)
            await new Promise(done => setTimeout(done, 25));
    }
    scrollTo({top: 0, behavior: 'instant'});
    return plots.length;
}"""


def _found(page: Page, script: str) -> list[str]:
    sentences: list[str] = page.evaluate(f"() => {{ {_COMMON} return ({script})(); }}")
    return sentences


def unroll(page: Page) -> int:
    """Open what is folded and scroll by every plot, so that all are drawn; return how many there are."""
    return int(page.evaluate(_UNROLL))


def beyond_the_window(page: Page) -> list[str]:
    """Name what reaches beyond the window; what stands in a box that scrolls by itself does not."""
    return _found(page, _OVERFLOW)


def clipped_texts(page: Page) -> list[str]:
    """Name texts of which a part cannot be seen: cut by a box, or beyond the edge of their plot."""
    return _found(page, _CLIPPED)


def overlapping_labels(page: Page) -> list[str]:
    """Name pairs of horizontal texts of one plot that lie over each other by more than 2 x 4 pixels."""
    return _found(page, _OVERLAP)


def empty_plots(page: Page) -> list[str]:
    """Name plots in which nothing is drawn."""
    return _found(page, _EMPTY)


def inaccessible(page: Page) -> list[str]:
    """Name the findings of axe-core of impact serious or critical, with the first element of each."""
    violations = Axe().run(page).response["violations"]
    return [
        f"{v['id']} ({v['impact']}) at {len(v['nodes'])} element(s), the first: {v['nodes'][0]['html'][:160]}"
        for v in violations
        if v["impact"] in ("serious", "critical")
    ]
