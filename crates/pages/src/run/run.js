// Sliders over the versions of each picture. Without scripts the last version is shown.
for (const figure of document.querySelectorAll("figure[data-versions]")) {
  const pictures = figure.querySelectorAll("img"), slider = figure.querySelector("input"), label = figure.querySelector("output");
  if (pictures.length < 2) continue;
  slider.hidden = false;
  const show = () => {
    pictures.forEach((picture, i) => { picture.hidden = i !== Number(slider.value); });
    label.textContent = pictures[slider.value].alt;
  };
  slider.addEventListener("input", show);
  show();
}
