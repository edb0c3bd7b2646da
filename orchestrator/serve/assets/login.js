// The token goes to the server once, in a header, and comes back as a cookie that no script can read.

const said = document.getElementById("said");

async function open(token) {
  const response = await fetch("/login", { headers: { authorization: `Bearer ${token}` } });
  if (response.ok) {
    history.replaceState(null, "", location.pathname);
    location.reload();
  } else {
    said.textContent = "That is not the token.";
  }
}

const ask = (token) => open(token).catch((error) => { said.textContent = `No answer: ${error.message}`; });

document.getElementById("form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(document.getElementById("token").value.trim());
});

const shown = new URLSearchParams(location.hash.slice(1)).get("token");
if (shown) {
  history.replaceState(null, "", location.pathname);
  ask(shown);
}
