// A passkey: the browser is asked for one, and its answer goes with the form.
//
//   <form data-passkey="create" data-options="{…}"><input type="hidden" name="answer">
//     <p data-passkey-refused hidden>…</p><button type="button" data-passkey-ask disabled>…</button></form>

export function mount(form, signal) {
  const ask = form.querySelector("[data-passkey-ask]");
  const refused = form.querySelector("[data-passkey-refused]");
  ask.addEventListener("click", async () => {
    refused.hidden = true;
    ask.disabled = true;
    try {
      const options = JSON.parse(form.dataset.options);
      const found = form.dataset.passkey === "create"
        ? await navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options), signal })
        : await navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options), signal });
      form.elements.answer.value = JSON.stringify(found);
      form.submit();
    } catch {
      refused.hidden = false;
      ask.disabled = false;
    }
  }, { signal });
  ask.disabled = false;
}
