// Colours of the design as the browser computes them: canvases cannot read CSS variables by themselves.

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

/** The computed colour of a token such as "--accent" in the theme shown now. */
export function colour(token) {
  probe.style.color = `var(${token})`;
  return getComputedStyle(probe).color;
}

/** The same colour, `share` opaque (0 to 1). */
export function wash(token, share) {
  probe.style.color = `color-mix(in srgb, var(${token}) ${share * 100}%, transparent)`;
  return getComputedStyle(probe).color;
}
