// A chosen text file is read into a field of the form: nothing is uploaded as a file.
//
//   <input type="file" data-reads-into="#id_csv" data-most-bytes="65536">

export function mount(chooser, signal) {
  chooser.addEventListener("change", async () => {
    const file = chooser.files[0];
    if (!file) return;
    const field = document.querySelector(chooser.dataset.readsInto);
    field.value = await file.slice(0, Number(chooser.dataset.mostBytes)).text();
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }, { signal });
}
