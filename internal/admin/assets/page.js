(() => {
  'use strict';
  const live = document.querySelector('.live'), state = document.querySelector('.live-state');
  if (!live) return;
  const box = live.querySelector('input');
  let stored = null;
  try { stored = sessionStorage.getItem('live'); } catch { /* storage is off */ }
  box.checked = stored !== 'off';
  live.hidden = false;
  box.addEventListener('change', () => {
    try { sessionStorage.setItem('live', box.checked ? 'on' : 'off'); } catch { /* storage is off */ }
  });
  const say = text => { if (state.textContent !== text) state.textContent = text; };
  // A part that a person is using is not replaced.
  const busy = part => part.contains(document.activeElement) || part.querySelector('details[open]');
  const refresh = async () => {
    if (!box.checked || document.hidden) return;
    let answer;
    try {
      answer = await fetch(location.href, { credentials: 'same-origin', headers: { 'X-Refresh': '1' } });
    } catch {
      return say('The sidecar does not answer. The page shows an earlier state.');
    }
    if (!answer.ok) return say(answer.status === 401 ? 'You are logged out. Load the page again.' : 'The page cannot be refreshed.');
    const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
    for (const part of document.querySelectorAll('.live-part')) {
      const now = fresh.getElementById(part.id);
      if (now && !busy(part) && now.innerHTML !== part.innerHTML) part.replaceChildren(...now.childNodes);
    }
    say('');
  };
  setInterval(refresh, 5000);
})();
